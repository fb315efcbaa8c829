"""The game as the contracts play it, in Python, and honest and lying players of it on toy models.

`game`            whose move it is, which moves there are, who pays in the end
`judge`           what the chain rules on opened evidence
`rows`            rows that are asked for, shown, or none
`draw`            whether an accused token was served and ordered so
`packing`         the words in which the chain keeps what is on trial
`traces`          a whole trace in memory, right or tampered with
`sources`         the tensors and rows that it reads
`toy`             decoders of a few numbers
`sparse`          a trace too large to hold, of which a few runs exist
`tokens`          what either side says of a token's verdict
`players`         accusers and accused
`test_games`      honest players cannot lose
`test_canonical`  an accused that is shown nothing cannot lose
`test_plea`       noise that rows have is no fault, and a lie is one after any plea
`test_rows`       rows that are withheld, or none
`test_tokens`     served tokens, and their filters
"""
