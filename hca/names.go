package hca

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

var (
	portStateNames = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	linkLayerNames = []string{"Unspecified", "InfiniBand", "Ethernet"}
	gidTypeNames   = []string{"IB", "RoCE v1", "RoCE v2"}
	transportNames = []string{"hardware", "software"}
	opcodeNames    = []string{"SEND", "RECV"}
	kindNames      = []string{"unknown", "total", "drop", "error", "gauge"}
)

func (s PortState) String() string   { return nameOf(portStateNames, int(s)) }
func (l LinkLayer) String() string   { return nameOf(linkLayerNames, int(l)) }
func (t GIDType) String() string     { return nameOf(gidTypeNames, int(t)) }
func (t Transport) String() string   { return nameOf(transportNames, int(t)) }
func (o WCOpcode) String() string    { return nameOf(opcodeNames, int(o)) }
func (k CounterKind) String() string { return nameOf(kindNames, int(k)) }

// MarshalText writes the kind's name.
func (k CounterKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the kind's name. That of a kind that another version has added becomes CountUnknown.
func (k *CounterKind) UnmarshalText(b []byte) error {
	if byName(k, kindNames, b) != nil {
		*k = CountUnknown
	}
	return nil
}

// MarshalText writes the state's name.
func (s PortState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText writes the layer's name.
func (l LinkLayer) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// MarshalText writes the type's name.
func (t GIDType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// MarshalText writes the transport's name.
func (t Transport) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// MarshalText writes the state's name.
func (s QPState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalText writes the colon form.
func (g GUID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// MarshalText writes an IP address or the colon form.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// MarshalText writes six hexadecimal digits.
func (q QPN) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// MarshalText writes four hexadecimal digits.
func (p PKey) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "0x%04x", uint16(p)), nil }

// MarshalText writes eight hexadecimal digits.
func (q QKey) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "0x%08x", uint32(q)), nil }

// UnmarshalText reads a number, hexadecimal with 0x in front.
func (q *QPN) UnmarshalText(b []byte) error { return number(q, b, 24) }

// UnmarshalText reads a number, hexadecimal with 0x in front.
func (p *PKey) UnmarshalText(b []byte) error { return number(p, b, 16) }

// UnmarshalText reads a number, hexadecimal with 0x in front.
func (q *QKey) UnmarshalText(b []byte) error { return number(q, b, 32) }

// UnmarshalText reads the state's name.
func (s *PortState) UnmarshalText(b []byte) error { return byName(s, portStateNames, b) }

// UnmarshalText reads the layer's name.
func (l *LinkLayer) UnmarshalText(b []byte) error { return byName(l, linkLayerNames, b) }

// UnmarshalText reads the type's name.
func (t *GIDType) UnmarshalText(b []byte) error { return byName(t, gidTypeNames, b) }

// UnmarshalText reads the transport's name.
func (t *Transport) UnmarshalText(b []byte) error { return byName(t, transportNames, b) }

// UnmarshalText reads the state's name.
func (s *QPState) UnmarshalText(b []byte) error { return byName(s, qpStateNames[:], b) }

// UnmarshalText reads the colon form.
func (g *GUID) UnmarshalText(b []byte) error {
	raw, err := hex.DecodeString(strings.ReplaceAll(string(b), ":", ""))
	if err != nil || len(raw) != len(g) {
		return fmt.Errorf("%q is not a GUID", b)
	}
	*g = GUID(raw)
	return nil
}

// UnmarshalText reads an IP address.
func (g *GID) UnmarshalText(b []byte) error {
	a, err := netip.ParseAddr(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a GID", b)
	}
	*g = GIDFromAddr(a)
	return nil
}

func number[T ~uint16 | ~uint32](into *T, b []byte, bits int) error {
	n, err := strconv.ParseUint(string(b), 0, bits)
	if err != nil {
		return fmt.Errorf("%q must be a number of at most %d bits", b, bits)
	}
	*into = T(n)
	return nil
}

func byName[T ~uint8](into *T, names []string, b []byte) error {
	i := slices.Index(names, string(b))
	if i < 0 {
		return fmt.Errorf("%q must be one of %s", b, strings.Join(names, ", "))
	}
	*into = T(i)
	return nil
}

// nameOf returns the i-th name, or UNKNOWN_i if i is out of range.
func nameOf(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return "UNKNOWN_" + strconv.Itoa(i)
	}
	return names[i]
}
