"""The simulator of whole clusters: voters, brokers, clients and an administrator."""
