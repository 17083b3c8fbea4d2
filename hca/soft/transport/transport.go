// Package transport is the contract between the software HCA and the carrier of its
// datagrams: UDP sockets on a netdev ([ipoibd/hca/soft/udp]) or an in-memory fabric
// ([ipoibd/hca/soft/memfabric]).
package transport

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"ipoibd/hca"
)

// MaxSegs bounds the datagrams of any train: receivers that cannot see the IPv4
// identification expect one below 64.
const MaxSegs = 64

// MaxLanes is the maximum number of lanes of a device, and so of queues of a QP. Each lane has its
// own transport.
const MaxLanes = 8

// Limits bound the trains that a transport takes.
type Limits struct {
	MaxSegs  int // datagrams, 1 to MaxSegs; 1: it takes no trains
	MaxBytes int // of all datagrams of a train together
}

// Allow reports whether a packet is within the limits. They do not apply to a packet that is
// not a train.
func (l Limits) Allow(p *Packet) bool {
	return p.Segs <= 1 || p.Segs <= l.MaxSegs && len(p.Data) <= l.MaxBytes
}

// ErrLimits means that a train exceeds the Limits, which may have been lowered since the caller
// read them. The caller must build it again within the new Limits, because the identifications
// of its datagrams change, which the ICRC covers.
var ErrLimits = errors.New("the train exceeds the limits of the transport")

// Packet is one RoCEv2 datagram, from the BTH to the ICRC (the payload of UDP), or on send a
// train of them.
type Packet struct {
	// Src and Dst are the IP addresses, IPv4 ones in their 4-byte form, IPv6 ones without a
	// zone. Src is one of State.Addrs on send; Dst may be a multicast address.
	Src, Dst netip.Addr
	// SrcPort is the UDP source port: the sender's on receive, the transport's own
	// on send; see Transport.SrcPort.
	SrcPort uint16
	// TOS and TTL are the IPv4 fields, or traffic class and hop limit. On send
	// they come from the AH (TTL 0: the system's default); on receive, from
	// the packet, or 0 if the transport cannot see them.
	TOS, TTL uint8
	// ID is the IPv4 identification; it is valid if IDKnown is set.
	ID      uint16
	IDKnown bool
	// Data is the datagram, or all those of a train, one after the other. The memory of a send
	// belongs to the caller, who does not change it until the packet is sent. The transport
	// reuses that of a received packet in the next Recv.
	Data []byte
	// Segs above 1 makes a send a train of that many datagrams with the same addresses, TOS
	// and TTL. Each has SegSize bytes, except that the last one may have fewer, but at least
	// 1. Over IPv4, datagram k, counted from 0, leaves with identification k. The train is
	// sent or dropped as a whole, and each of its datagrams is counted.
	Segs, SegSize int
}

// Datagrams returns the number of datagrams of a send.
func (p *Packet) Datagrams() int { return max(1, p.Segs) }

// Valid reports whether a send is consistent: addresses of one family, and data that
// fits the number and the size of the datagrams.
func (p *Packet) Valid() bool {
	if p.Src.Is4() != p.Dst.Is4() || !p.Dst.IsValid() {
		return false
	}
	n := len(p.Data)
	return p.Segs <= 1 || n > (p.Segs-1)*p.SegSize && n <= p.Segs*p.SegSize
}

// State is the state of the transport's underlay.
type State struct {
	Name    string // of the netdev; it may change
	Index   int    // kernel index
	Present bool   // false, permanently, once the netdev is gone
	Up      bool   // administratively up and with carrier
	MTU     int    // of the underlay, bytes of IP packet
	MAC     [6]byte
	Addrs   []netip.Addr // usable unicast addresses, in a stable order: link-local IPv6, IPv4, other IPv6
}

// SortAddrs sorts addresses in the order of State.Addrs.
func SortAddrs(addrs []netip.Addr) {
	rank := func(a netip.Addr) int {
		switch {
		case a.Is4():
			return 1
		case a.IsLinkLocalUnicast():
			return 0
		}
		return 2
	}
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return cmp.Compare(rank(a), rank(b)) })
}

// Transport carries datagrams. Only one goroutine at a time may call Send, and only one Recv;
// every other method may be called from any goroutine.
type Transport interface {
	// SrcPort returns the UDP source port of all packets sent. The ICRC covers it,
	// so it does not change while the transport is open.
	SrcPort() uint16
	// Send sends packets in order without blocking and returns how many were
	// sent, or dropped and counted by reason in Counters (no route, too long,
	// no buffers, ...). n < len(pkts) with a nil error means that the transport
	// is full: call WaitWritable, then send the rest or drop it. IPv4 packets leave
	// with DF set and identification 0, or their index in a train (the ICRC covers
	// both). An error is ErrLimits, hca.ErrClosed or hca.ErrIO.
	Send(pkts []Packet) (n int, err error)
	// Limits returns the current limits of trains. They may decrease while the transport
	// is open, but never increase.
	Limits() Limits
	// WaitWritable blocks until Send can take packets, or ctx ends. It may
	// return some time after Send could take packets.
	WaitWritable(ctx context.Context) error
	// Blocked returns how often Send found the wire full: it took fewer packets
	// than it was given, or dropped one because a lower layer had no room.
	Blocked() uint64
	// Recv blocks until there is at least one datagram and returns up to
	// len(pkts) of them, or 0 and nil after Interrupt. It returns hca.ErrClosed after Close,
	// and hca.ErrIO if the transport has failed.
	Recv(pkts []Packet) (int, error)
	// Interrupt makes the current Recv return, or the next one if none is blocked.
	Interrupt()
	// Join and Leave an IP multicast group. Each Join needs a Leave. The
	// transport does not receive its own multicast packets.
	Join(group netip.Addr) error
	Leave(group netip.Addr) error
	// State returns the current state; its slices belong to the caller.
	State() State
	// WaitChange blocks until the state may differ from the one that State or
	// WaitChange returned last. Errors: ctx's, or hca.ErrClosed.
	WaitChange(ctx context.Context) (State, error)
	// Counters returns the counts of packets, and of drops by reason.
	Counters() []hca.Counter
	// Close closes the transport; blocked calls return hca.ErrClosed. Idempotent.
	Close() error
}

// Paths is a [Transport] that knows how long packets may be on their way to a destination. Its
// methods may be called from any goroutine. They do not wait for the network.
type Paths interface {
	// PathMTU returns the length in bytes of the longest IP packet that reaches dst, as far as
	// this host knows: the MTU of the route, or less if a router has reported that a packet was
	// too long (RFC 1191, RFC 8201). Anyone can forge these reports. An error means that the
	// MTU is unknown, for example because there is no route.
	PathMTU(dst netip.Addr) (int, error)
	// RouteMTU is PathMTU without the reports of routers: the MTU that this host's
	// configuration gives the route, or the MTU of the netdev.
	RouteMTU(dst netip.Addr) (int, error)
	// PathChanged delivers a value after a router may have reported that a packet was too long.
	PathChanged() <-chan struct{}
}
