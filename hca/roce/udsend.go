package roce

import "errors"

// Lengths and numbers of a UD SEND.
const (
	Port      = 4791             // UDP destination port (A17.3.1.1, assigned by IANA)
	HeaderLen = BTHLen + DETHLen // in front of the payload
	ICRCLen   = 4                // after payload and padding
	MaxPad    = 3                // padding fills the last word
)

// wordLen is what payload and padding together are a multiple of (IBA 9.2.4).
const wordLen = 4

// Why a datagram is not a UD SEND that we take. Each is a reason to drop.
var (
	ErrShort     = errors.New("roce: datagram too short")
	ErrVersion   = errors.New("roce: unknown transport header version")
	ErrOpcode    = errors.New("roce: opcode is not UD SEND only")
	ErrImmediate = errors.New("roce: UD SEND with immediate data")
	ErrPad       = errors.New("roce: padding does not fit the length")
)

// UDSend is a UD SEND only packet, taken apart.
type UDSend struct {
	BTH
	DETH
	Payload []byte // without padding
}

// ParseUDSend takes a datagram apart, without checking its ICRC: see [Verify].
// Payload aliases datagram, its capacity ends with it. Errors: ErrShort,
// ErrVersion, ErrOpcode, ErrImmediate, ErrPad, in the order of these checks.
func ParseUDSend(datagram []byte) (UDSend, error) {
	if len(datagram) < HeaderLen+ICRCLen {
		return UDSend{}, ErrShort
	}
	bth, _ := ParseBTH(datagram)
	if err := bth.checkUDSend(); err != nil {
		return UDSend{}, err
	}
	padded := len(datagram) - HeaderLen - ICRCLen
	if padded%wordLen != 0 || int(bth.Pad) > padded {
		return UDSend{}, ErrPad
	}
	deth, _ := ParseDETH(datagram[BTHLen:])
	end := len(datagram) - ICRCLen - int(bth.Pad)
	return UDSend{BTH: bth, DETH: deth, Payload: datagram[HeaderLen:end:end]}, nil
}

// checkUDSend refuses every BTH but that of a UD SEND only.
func (h BTH) checkUDSend() error {
	switch {
	case h.Version != 0:
		return ErrVersion
	case h.Opcode == opcodeUDSendOnlyImmediate:
		return ErrImmediate
	case h.Opcode != OpcodeUDSendOnly:
		return ErrOpcode
	}
	return nil
}

// PadFor returns the bytes of padding that a payload of n bytes needs.
func PadFor(n int) int { return -n & (wordLen - 1) }
