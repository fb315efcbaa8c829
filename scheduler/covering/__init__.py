"""How many of each pattern, in whole numbers, within a supply of machines?

`simplex`  the best fractional mix, and a price for each kind of machine
`corner`   what every whole plan must waste at these prices (Gomory)
`outside`  the patterns beyond the relaxation that leave what its own can use up
`whole`    the whole numbers that waste least
"""
