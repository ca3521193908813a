"""Write digits_scores.npy, the input of `tile_simt_interop.py`: real class scores, 1797 x 10, float32.

The data is scikit-learn's copy of the UCI test set of handwritten digits (1797 images of 8 x 8 pixels),
which comes with the package. Every image is scored by a multinomial logistic regression that has not seen
it: ten-fold cross-validation, so the scores are those of a classifier at work, with its mistakes. The
scores are the decision function (logits): row softmax turns them into class probabilities.

    pip install "scikit-learn>=1.5"
    python examples/data/make_digits_scores.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

try:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
except ImportError as error:
    print(
        f"error: scikit-learn cannot be imported ({error}): pip install 'scikit-learn>=1.5'", file=sys.stderr
    )
    sys.exit(2)

OUTPUT = Path(__file__).with_name("digits_scores.npy")


def digit_scores() -> tuple[np.ndarray, float]:
    """The scores of all images and the share of them that the highest score names rightly."""
    images, labels = load_digits(return_X_y=True)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
    folds = StratifiedKFold(n_splits=10, shuffle=True, random_state=0)
    scores = cross_val_predict(classifier, images, labels, cv=folds, method="decision_function")
    return scores.astype(np.float32), float(np.mean(scores.argmax(axis=1) == labels))


def main() -> None:
    scores, accuracy = digit_scores()
    np.save(OUTPUT, scores)
    print(f"{OUTPUT.name}: {scores.shape[0]} x {scores.shape[1]} {scores.dtype}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
