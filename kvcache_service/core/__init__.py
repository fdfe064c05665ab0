"""Pure rules of blocks and prefix cache: synchronous, standard library only."""
