package mad

import (
	"encoding/binary"

	"ipoibd/hca"
)

// Len is the length of every MAD in bytes (IBA 13.4.2).
const Len = 256

// Fields of the common header (IBA 13.4.2, "MAD base header").
const (
	offBaseVersion  = 0
	offClass        = 1
	offClassVersion = 2
	offMethod       = 3
	offStatus       = 4
	offTID          = 8
	offAttribute    = 16
	offModifier     = 20

	headerLen = 24

	baseVersion = 1
)

// QKeyGSI is the Q_Key of every general services interface, [hca.QPNGSI] (in Linux IB_QP1_QKEY). Its top bit makes it
// a controlled one (IBA 10.2.5), which only privileged processes may set.
const QKeyGSI hca.QKey = 0x80010000

// Management classes (IBA 13.4.4), and the version of the SA class.
const (
	ClassSubnAdm = 0x03

	VersionSubnAdm = 2
)

// FieldError is the name of a field that is not valid: "PathRecord.DLID".
type FieldError string

func (e FieldError) Error() string { return "invalid MAD: " + string(e) }

// Unwrap returns [hca.ErrInvalid].
func (e FieldError) Unwrap() error { return hca.ErrInvalid }

// Header is the common header of a MAD (IBA 13.4.2).
type Header struct {
	Class        uint8
	ClassVersion uint8
	Method       Method
	Status       Status
	TID          uint64 // transaction; an answer has that of its request
	Attribute    Attribute
	Modifier     uint32 // of the attribute; 0 in the SA class
}

// Put writes h to the first 24 bytes of dst.
func (h *Header) Put(dst []byte) {
	dst = dst[:headerLen]
	clear(dst)
	dst[offBaseVersion] = baseVersion
	dst[offClass], dst[offClassVersion], dst[offMethod] = h.Class, h.ClassVersion, byte(h.Method)
	binary.BigEndian.PutUint16(dst[offStatus:], uint16(h.Status))
	binary.BigEndian.PutUint64(dst[offTID:], h.TID)
	binary.BigEndian.PutUint16(dst[offAttribute:], uint16(h.Attribute))
	binary.BigEndian.PutUint32(dst[offModifier:], h.Modifier)
}

// Parse sets all fields of h. It accepts any class.
func (h *Header) Parse(src []byte) error {
	if len(src) != Len {
		return FieldError("length")
	}
	if src[offBaseVersion] != baseVersion {
		return FieldError("BaseVersion")
	}
	*h = Header{
		Class: src[offClass], ClassVersion: src[offClassVersion], Method: Method(src[offMethod]),
		Status:    Status(binary.BigEndian.Uint16(src[offStatus:])),
		TID:       binary.BigEndian.Uint64(src[offTID:]),
		Attribute: Attribute(binary.BigEndian.Uint16(src[offAttribute:])),
		Modifier:  binary.BigEndian.Uint32(src[offModifier:]),
	}
	return nil
}
