"""Examples for fine-tuning: turns chats, prompts or text into packed samples; imports no torch."""
