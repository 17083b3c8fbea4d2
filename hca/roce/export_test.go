package roce

// ReadBTH reads a BTH from the first BTHLen bytes of src.
func ReadBTH(src []byte) (h BTH) {
	h.read((*[BTHLen]byte)(src))
	return h
}

// ReadDETH reads a DETH from the first DETHLen bytes of src.
func ReadDETH(src []byte) (h DETH) {
	h.read((*[DETHLen]byte)(src))
	return h
}
