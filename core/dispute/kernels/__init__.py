"""What traces take most time for, in C, and as many at once as there are cores.

`native`      the C of this room, compiled on the machine that runs it
`cores`       work on all cores
`chunks.c`    hashes of chunks
"""
