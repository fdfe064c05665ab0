"""Model families: their configuration and their forward pass over paged K/V."""
