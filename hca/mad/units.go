package mad

import (
	"fmt"
	"time"

	"ipoibd/hca"
)

// Selector says how a value in a request is meant; the answer has a value (IBA 15.2.5.16).
type Selector uint8

// Selectors.
const (
	SelectGreater Selector = iota
	SelectLess
	SelectExactly
	SelectLargest // the largest that there is, or for a lifetime the smallest; the value is ignored
)

// Selected is a value with its selector, which share a byte: 2 bits and 6 bits.
type Selected[T ~uint8] struct {
	By    Selector
	Value T
}

const selectedBits = 6

func (s Selected[T]) pack() byte { return byte(s.By)<<selectedBits | byte(s.Value)&(1<<selectedBits-1) }

func unpack[T ~uint8](b byte) Selected[T] {
	return Selected[T]{By: Selector(b >> selectedBits), Value: T(b & (1<<selectedBits - 1))}
}

// MTUCode is an MTU on the wire: 1 to 5 for 256 to 4096 bytes (enum ib_mtu).
type MTUCode uint8

const maxMTUCode = 5

// MTU returns the MTU in bytes, or 0 if the code is unknown.
func (c MTUCode) MTU() hca.MTU {
	if c == 0 || c > maxMTUCode {
		return 0
	}
	return hca.MTU(128 << c)
}

// MTUCodeOf returns the code of an MTU, or 0 if m is not valid.
func MTUCodeOf(m hca.MTU) MTUCode {
	for c := MTUCode(1); c <= maxMTUCode; c++ {
		if c.MTU() == m {
			return c
		}
	}
	return 0
}

// Rate is a static rate on the wire (enum ib_rate). The codes are not in the order of their values: compare them with
// [Rate.Compare].
type Rate uint8

// rates are the values of the codes in units of 0.1 Gbit/s, as their names round them; 0: the code is unknown.
var rates = [...]int{
	2: 25, 3: 100, 4: 300, 5: 50, 6: 200, 7: 400, 8: 600, 9: 800, 10: 1200,
	11: 140, 12: 560, 13: 1120, 14: 1680, 15: 250, 16: 1000, 17: 2000, 18: 3000,
	19: 280, 20: 500, 21: 4000, 22: 6000, 23: 8000, 24: 12000, 25: 16000,
}

// Known reports whether the code is in the table.
func (r Rate) Known() bool { return int(r) < len(rates) && rates[r] != 0 }

// Gbps returns the rate in Gbit/s, or 0 if the code is unknown.
func (r Rate) Gbps() float64 {
	if !r.Known() {
		return 0
	}
	return float64(rates[r]) / 10
}

// Compare returns -1, 0 or 1 if r is slower than, as fast as or faster than other. Unknown codes are the slowest.
func (r Rate) Compare(other Rate) int {
	switch a, b := r.Gbps(), other.Gbps(); {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (r Rate) String() string {
	if !r.Known() {
		return fmt.Sprintf("rate code %d", uint8(r))
	}
	return fmt.Sprintf("%g Gbit/s", r.Gbps())
}

// TimeCode is a time on the wire: 4.096 us x 2^code, with 5 or 6 bits.
type TimeCode uint8

// maxTimeCode is the largest code whose time fits a Duration.
const maxTimeCode = 50

// Duration returns the time. Codes above 50 (146 years) count as 50.
func (c TimeCode) Duration() time.Duration { return 4096 * time.Nanosecond << min(c, maxTimeCode) }

// Routing is what a GRH needs in addition to its GIDs (IBA 8.3). In records it shares a word with other fields:
// 20 bits of flow label, then the hop limit.
type Routing struct {
	Class     uint8  // traffic class
	FlowLabel uint32 // 20 bits
	HopLimit  uint8
}

const flowMask = 1<<20 - 1

// word returns the flow label and the hop limit behind the four bits that top has.
func (r Routing) word(top uint8) uint32 {
	return uint32(top)<<28 | r.FlowLabel&flowMask<<8 | uint32(r.HopLimit)
}

// routing splits such a word.
func routing(class uint8, word uint32) Routing {
	return Routing{Class: class, FlowLabel: word >> 8 & flowMask, HopLimit: uint8(word)}
}
