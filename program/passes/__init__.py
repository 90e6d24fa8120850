"""Our own passes over a training program, where Paddle's do nothing, do too little, or cannot be steered."""
