"""The stand-in engine, GPU tool and model of lab hosts: honest about what they are, real in how they behave."""
