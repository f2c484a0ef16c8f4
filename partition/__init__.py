"""Cuts of periodic systems into ranks: curves, cut, boxes, exchange, chunks, search, topology, plan, stats."""
