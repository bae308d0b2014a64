"""Report text: the terms of the report, for readers who do not have the paper at hand."""

GLOSSARY = {
    "Z": "the patch embeddings of an image, one row per patch. Z0 comes from the encoder, Z1, Z2, … after each step.",
    "Z_L1": "the patch embeddings after the last step that moves them; the masks are read from these.",
    "Q": "the class embeddings, one row per class. A mask is the inner product of Q and Z at unit length.",
    "Q̄": "each class embedding repeated once for every patch of its class.",
    "P, P'_h": "the bases of the subspaces of a layer, and those of one of its heads, h. They are learned.",
    "R(Z)": "the coding rate: how many nats it takes to store Z up to an error of ε. Spread-out embeddings have a "
    "high rate, embeddings in a few directions a low one.",
    "nat": "a unit of information, 1.44 bits.",
    "MSSA, MSCA": "the attention layers of DEPICT: one gradient step on the coding rate in the subspaces, for the "
    "patches (self-attention) and for the class embeddings (cross-attention).",
    "step size": "the learned length of such a step. Above 0 it should raise the rate in the subspaces, below 0 "
    "lower it.",
    "principal angle": "the angle between two subspaces: 0° if they share a direction, 90° if they are orthogonal.",
    "|cos|": "the absolute cosine between two vectors: 0 for orthogonal, 1 for parallel ones.",
    "effective rank": "the number of directions that the embeddings really use.",
    "mIoU": "intersection over union of predicted and true pixels, averaged over the classes.",
    "best-match mIoU": "the mIoU after matching segments and classes one to one, for segments without a class.",
    "adjusted Rand index": "the agreement of two partitions: 1 if they are the same, 0 for chance.",
}
