"""Kernels in C, compiled on the machine that runs them.

`native`        compiles them, keeps what was compiled, and binds it
`layers.c`      a run of plain decoder layers
`products.c`    rows times a weight, for few rows and large weights
`paged_rows.c`  a new row of each sequence attends to that sequence's pages
`whole_rows.c`  every row of one request attends to those up to itself
`moves.c`       bytes from one place to another, past the caches
`numbers.h`     arithmetic on sixteen floats or eight doubles side by side
`lines.h`       lines of memory past the caches
`real.h`        float or double, as it is compiled
"""
