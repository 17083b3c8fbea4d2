package roce

import "errors"

// Lengths and numbers of a UD SEND.
const (
	Port      = 4791             // UDP destination port (A17.3.1.1, assigned by IANA)
	HeaderLen = BTHLen + DETHLen // in front of the payload
	ICRCLen   = 4                // after payload and padding
	MaxPad    = 3                // padding fills the last word
)

// wordLen is the length of a word: payload plus padding are whole words (IBA 9.2.4).
const wordLen = 4

// Reasons why a datagram is not an acceptable UD SEND. The receiver drops it.
var (
	ErrShort     = errors.New("roce: datagram too short")
	ErrVersion   = errors.New("roce: unknown transport header version")
	ErrOpcode    = errors.New("roce: opcode is not UD SEND only")
	ErrImmediate = errors.New("roce: UD SEND with immediate data")
	ErrPad       = errors.New("roce: padding does not fit the length")
)

// UDSend is a parsed UD SEND Only packet.
type UDSend struct {
	BTH
	DETH
	Payload []byte // without padding
}

// Parse reads a datagram. It does not check the ICRC; see [Verifier.Verify]. Payload aliases
// datagram, and its capacity equals its length. Errors, after which u is undefined:
// ErrShort, ErrVersion, ErrImmediate, ErrOpcode, ErrPad, checked in this order.
func (u *UDSend) Parse(datagram []byte) error {
	if len(datagram) < HeaderLen+ICRCLen {
		return ErrShort
	}
	u.BTH.read((*[BTHLen]byte)(datagram))
	if err := u.checkUDSend(); err != nil {
		return err
	}
	padded := len(datagram) - HeaderLen - ICRCLen
	if padded%wordLen != 0 || int(u.Pad) > padded {
		return ErrPad
	}
	u.DETH.read((*[DETHLen]byte)(datagram[BTHLen:]))
	end := len(datagram) - ICRCLen - int(u.Pad)
	u.Payload = datagram[HeaderLen:end:end]
	return nil
}

// checkUDSend returns an error unless h is the BTH of a UD SEND Only.
func (h *BTH) checkUDSend() error {
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

// PadFor returns how many bytes of padding a payload of n bytes needs.
func PadFor(n int) int { return -n & (wordLen - 1) }
