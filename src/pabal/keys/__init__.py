"""The keys of the hub: what signs, encrypts and seals; several live, one of each active."""
