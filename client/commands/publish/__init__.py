"""What is typed by who brings a model to the network.

`publish`  `client models publish`: hashed, judged, registered and named
`share`    `client models share`: its files for machines that pull them
"""
