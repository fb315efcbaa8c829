"""What honest work on a model's own weights comes to, before T is promised for them.

`calibrated`        how far honest machines may be from float64, by family
`calibration.json`  what was measured of them
`kernels`           how an honest machine computes a shard's rows
`natural`           how far its work on natural rows is from float64, at every span of layers
`gradients`         a stage's operators in torch, by which rows are searched
`search`            how far its work is on rows that were chosen against it
`weigh`             whether a program's T can be promised for a model's weights
"""
