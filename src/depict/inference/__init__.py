"""From a network and an image of any size to labels: sliding windows, scales, flips, in bounded memory."""
