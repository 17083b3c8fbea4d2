module ipoibd

go 1.26.0
