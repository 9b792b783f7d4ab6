"""Words coloured by what they contribute to a prediction: on a page, in a picture, in the terminal."""
