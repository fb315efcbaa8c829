"""A model's life between strangers: published by one, pulled and held to the chain by others.

`publication`  a model folder as a manifest and a specification, with its operator program
`registering`  program, specification and name on the chain, each unless it is there
`names`        the model that a person means by a name or an id
`places`       where a model's files are, and how some bytes of one are read
`peers`        machines that serve the model as places of its files
`dialling`     a stranger's web server, asked at the address that was looked at, and in time
`pull`         the tensors of some layers, fetched, proven and written down
`programs`     the operator program that a model's profile names, and its spans
`having`       what a program works with of a model, from this machine or its places
`using`        which folders programs of this machine work with, so that nobody removes them
`local`        what is here: listed, shown, verified, removed
`commands`     the same as commands of every program that works with models
"""
