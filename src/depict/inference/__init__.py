"""From a network and an image of any size to labels: sliding windows, scales and flips, in bounded memory."""
