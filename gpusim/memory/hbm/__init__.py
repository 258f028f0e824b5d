"""HBM: timing rules, address mappings, a command-level FR-FCFS controller, and its fast form for the simulator.

`rules` the constraints as numbers, `timing` banks and when a command is legal, `mapping` from address to bank and row,
`scheduler` a controller that plays those rules command by command, `reserve` what the simulator calls per access,
`reservations` the state behind it.
"""
