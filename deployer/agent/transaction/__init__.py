"""The host-owned move from one release to another: durable steps, resumed after a kill or a reboot, undone on failure."""
