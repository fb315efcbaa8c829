"""Drawings of the pages, in SVG.

`pipelines`  machines and their layers, chained as they serve
`ring`       the machines of one chain in a circle, as an answer travels
`lines`      a number over time
`days`       amounts per day, as columns
`bars`       how much of something is used
`path`       the stations of a dispute from left to right
`svg`        the elements that all pictures are made of, escaped and coloured by class
"""
