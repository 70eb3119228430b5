"""Deployment on Flower: our round loop over its messages, homes of server and nodes, certificates and processes."""
