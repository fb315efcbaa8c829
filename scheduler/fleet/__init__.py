"""What machines, links and models are there, and what does it cost to use them?

`fleet`       machines, links, models, placements
`workload`    the requests that a plan is made for
`profile`     what was measured of a machine with a model
`files`       all of these as they are written in files
`numbers`     which numbers they may hold
`errors`      what can be wrong with them, and with a plan
`costs`       how many layers a machine holds, and how long it takes over them
`kinds`       machines that are alike, and the patterns that hold a model
`connected`   an order of machines that do not all reach each other
`water_fill`  layers for the stages of a pipeline, so that their times are even
`validate`    whether a plan may be told to machines
`shortage`    what is short, and by how much
`gap`         how far a value is from a bound
`highs`       the solver, opened so that the same problem has the same answer
`arrays`      types of arrays
"""
