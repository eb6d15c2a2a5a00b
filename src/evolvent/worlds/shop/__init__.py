"""A generated shop in the form of WebShop: products, pages, the published reward, and its world."""
