"""The streaming multiprocessor: programs in compiled form, pipes, agents, occupancy."""
