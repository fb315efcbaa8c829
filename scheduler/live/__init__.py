"""What is told to which machine while a fleet serves?

`churn`         who came, left and reported; the fleet as it is now
`repair`        the least to be told after that
`repair_steps`  the mildest step that covers every layer again
`standby`       work for standby machines, and plans of whole fleets
`migrate`       moves that pay although loading takes time
`rebalance`     Parallax's rules for joins and for a new plan (§3.4)
`hand_over`     planned slices to machines, so that the fewest layers are loaded
`holdings`      what slices cover, and which is worth most to a machine
"""
