"""Which node of a fleet is slow?"""
