"""Models over paged K/V: `interface` is what the runner asks of one, `config` the shape of one of any family,
`torch_model` the forward pass in PyTorch (the fused one is in `cpu/`), `rope` the rotation of positions.
"""
