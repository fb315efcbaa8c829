"""What traces take most time for, in C, and as many at once as there are cores.

`native`      the C of this room, compiled on the machine that runs it
`cores`       work on all cores
`speed`       how long this machine takes for a trace
`dots.c`      dot products of two sets of rows
`sums.c`      sums of rows and of their squares
`elements.c`  what is made of each number by itself
`chunks.c`    hashes of chunks
`shakes.c`    the factors of a plea's second pass
`above.h`     a power of two above a sum's terms
`pairs.h`     numbers of twice a double's digits, side by side
"""
