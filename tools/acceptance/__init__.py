"""What a user runs first on a new machine: does it compute right, and how fast?"""
