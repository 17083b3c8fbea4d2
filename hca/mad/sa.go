package mad

import "encoding/binary"

// Fields of the header of the SA class behind the common one (IBA 15.2.1.1), and of its RMPP header (IBA 13.6.2.1).
const (
	offRMPPFlags       = 26
	offSMKey           = 36
	offAttributeOffset = 44
	offComponentMask   = 48

	// DataOffset is where the attribute begins.
	DataOffset = 56
	// DataLen is the room for it in bytes.
	DataLen = Len - DataOffset

	rmppActive = 1 << 0
)

// SA is everything before the attribute in a MAD of the SA class.
type SA struct {
	Header
	SMKey           uint64
	AttributeOffset uint16 // from record to record in an answer to GetTable, in units of 8 bytes
	Mask            Mask   // of a request
}

// NewRequest returns the header of a request.
func NewRequest(m Method, a Attribute, tid uint64, mask Mask) SA {
	return SA{
		Header: Header{Class: ClassSubnAdm, ClassVersion: VersionSubnAdm, Method: m, TID: tid, Attribute: a},
		Mask:   mask,
	}
}

// Put writes h to the first DataOffset bytes of dst.
func (h *SA) Put(dst []byte) {
	dst = dst[:DataOffset]
	h.Header.Put(dst)
	clear(dst[headerLen:])
	binary.BigEndian.PutUint64(dst[offSMKey:], h.SMKey)
	binary.BigEndian.PutUint16(dst[offAttributeOffset:], h.AttributeOffset)
	binary.BigEndian.PutUint64(dst[offComponentMask:], uint64(h.Mask))
}

// Parse sets all fields of h. It refuses other classes, and segments of a longer answer.
func (h *SA) Parse(src []byte) error {
	if err := h.Header.Parse(src); err != nil {
		return err
	}
	switch {
	case h.Class != ClassSubnAdm:
		return FieldError("MgmtClass")
	case h.ClassVersion != VersionSubnAdm:
		return FieldError("ClassVersion")
	case src[offRMPPFlags]&rmppActive != 0:
		return FieldError("RMPPFlags")
	}
	h.SMKey = binary.BigEndian.Uint64(src[offSMKey:])
	h.AttributeOffset = binary.BigEndian.Uint16(src[offAttributeOffset:])
	h.Mask = Mask(binary.BigEndian.Uint64(src[offComponentMask:]))
	return nil
}
