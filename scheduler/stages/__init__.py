"""How are chains of shared stages made and improved, for the largest flow?

`table`           what the searches read about a fleet
`stages`          how fast a stage is, and how many layers each stage of a chain takes
`chains`          from chains to a placement and back
`moves`           from one arrangement of chains to the next
`stage_patterns`  the fastest single pipeline, as sets of kinds of machines
`quick_patterns`  the one that takes a prompt the least time
`compact_milp`    counts of interchangeable machines where links do not bind, with a proof
`solver`          programs of that size, put to HiGHS
`polish`          single machines shifted outside of any chain
`patches`         a few machines that make up for what a placement lacks
`coverage`        what passes every layer where no link binds
`narrow`          links as narrow as they are when prompts come in bursts
"""
