"""From a folder of measurements of a card to a GPU file: what `gpusim calibrate` does without a GPU."""
