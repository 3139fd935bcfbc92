"""Serve `torch.distributed` on the ranks of Phalanx: the backend ``"phalanx"``."""
