package reset

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Bounds of a message.
const (
	// MaxMembers bounds the clients of one device: a port has a handful of P_Keys.
	MaxMembers = 64
	// MaxHolders bounds who is named when a reset ends.
	MaxHolders = 8
	// MaxName bounds a client's name, in bytes.
	MaxName = 48
	// MaxFrame bounds an encoded message, in bytes: what a reader's buffer holds.
	// The longest is Hello with a full roster.
	MaxFrame = headerLen + 64 + MaxName + MaxMembers*(memberFixed+MaxName)

	headerLen   = 4 // [length of what follows the first two bytes 2][version 1][kind 1]
	memberFixed = 13
	version     = 1
)

// Sentinels of [Append] and [Decode].
var (
	ErrVersion = errors.New("unknown version")
	ErrFormat  = errors.New("not of the expected format")
	ErrTooLong = errors.New("longer than its bound")
)

// Append appends the frame of m to dst. ErrTooLong when a list or a name is
// above its bound, ErrFormat when a name has characters that [Decode] refuses.
func Append(dst []byte, m Message) ([]byte, error) {
	w := writer{b: append(dst, 0, 0, version, byte(m.kind()))}
	w.message(m)
	if w.err != nil {
		return dst, fmt.Errorf("encode %T: %w", m, w.err)
	}
	binary.BigEndian.PutUint16(w.b[len(dst):], uint16(len(w.b)-len(dst)-2))
	return w.b, nil
}

// Decode reads the first message of b, which starts at a frame, and returns how
// many bytes it took: 0, with neither message nor error, while the frame is not
// complete. No frame is longer than [MaxFrame]. After an error the stream is
// lost. The message keeps no reference to b.
func Decode(b []byte) (Message, int, error) {
	if len(b) < 2 {
		return nil, 0, nil
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	if n < headerLen || n > MaxFrame {
		return nil, 0, fmt.Errorf("frame of %d bytes: %w", n, ErrTooLong)
	}
	if len(b) >= headerLen && b[2] != version {
		return nil, 0, fmt.Errorf("version %d: %w", b[2], ErrVersion)
	}
	if len(b) < n {
		return nil, 0, nil
	}
	m, err := decodeBody(kind(b[3]), b[headerLen:n])
	if err != nil {
		return nil, 0, fmt.Errorf("decode message of kind %d: %w", b[3], err)
	}
	return m, n, nil
}

// decodeBody reads exactly b.
func decodeBody(k kind, b []byte) (Message, error) {
	r := reader{b: b}
	m := r.message(k)
	if !r.bad && len(r.b) == 0 && m != nil {
		return m, nil
	}
	return nil, ErrFormat
}

// CleanName makes a name that a message can carry: printable ASCII, others
// replaced, cut to [MaxName].
func CleanName(s string) string {
	b := []byte(s[:min(len(s), MaxName)])
	for i, c := range b {
		if !printable(c) {
			b[i] = '?'
		}
	}
	return string(b)
}

// printable is what a name may have, since it ends in logs and on terminals.
func printable(c byte) bool { return c >= 0x20 && c < 0x7f }
