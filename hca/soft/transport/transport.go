// Package transport is the contract between the software HCA and the carrier of its
// datagrams: UDP sockets on a netdev ([ipoibd/hca/soft/udp]) or an in-memory fabric
// ([ipoibd/hca/soft/memfabric]).
package transport

import (
	"context"
	"net/netip"

	"ipoibd/hca"
)

// MaxVec bounds the gather list of a packet: headers, four pieces of payload,
// padding and ICRC.
const MaxVec = 6

// Packet is one RoCEv2 datagram: the UDP payload from the BTH to the ICRC.
type Packet struct {
	// Src and Dst are the IP addresses, IPv4 ones in their 4-byte form. Src is
	// one of State.Addrs on send; Dst may be a multicast address.
	Src, Dst netip.Addr
	// SrcPort is the UDP source port: the sender's on receive, the transport's own
	// on send; see Transport.SrcPort.
	SrcPort uint16
	// TOS and TTL are the IPv4 fields, or traffic class and hop limit. On send
	// they are the AH's (TTL 0: the system's default); on receive those of the
	// packet, or 0 if the transport does not know them.
	TOS, TTL uint8
	// ID is the IPv4 identification, valid if IDKnown is set.
	ID      uint16
	IDKnown bool
	// Vec is the gather list of a send, with at most MaxVec entries. The caller
	// must not change its memory until the packet is sent.
	Vec [][]byte
	// Data is a received datagram in the transport's memory, valid until the next
	// Recv.
	Data []byte
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

// Transport carries datagrams. Send must be called by one goroutine at a time, as must
// Recv; all other methods may be called from any goroutine.
type Transport interface {
	// SrcPort returns the UDP source port of all packets sent. The ICRC covers it,
	// so it does not change while the transport is open.
	SrcPort() uint16
	// Send sends packets in order without blocking. It returns how many it has
	// sent, or dropped and counted by reason in Counters (no route, too long, no
	// buffers, ...). n < len(pkts) with a nil error means that the transport is
	// full: call WaitWritable, then send the rest, or drop it. IPv4 packets have
	// DF set and identification 0 (the ICRC covers both). An error is
	// hca.ErrClosed or hca.ErrIO.
	Send(pkts []Packet) (n int, err error)
	// WaitWritable blocks until Send can accept a packet, or ctx ends. It may
	// return later than that.
	WaitWritable(ctx context.Context) error
	// Blocked returns how often Send found the wire full: it accepted fewer
	// packets than it was given, or dropped one because a lower queue was full.
	Blocked() uint64
	// Recv blocks until there is at least one datagram and returns up to
	// len(pkts) of them. It returns hca.ErrClosed after Close.
	Recv(pkts []Packet) (int, error)
	// Join and Leave join and leave an IP multicast group. They are counted: each
	// Join needs its own Leave. The sender does not receive its own packets.
	Join(group netip.Addr) error
	Leave(group netip.Addr) error
	// State returns the current state; the caller owns the slices in it.
	State() State
	// WaitChange blocks until the state may differ from the one that State or
	// WaitChange returned last. Its error is that of ctx, or hca.ErrClosed.
	WaitChange(ctx context.Context) (State, error)
	// Counters returns the counts of packets, and of drops by reason.
	Counters() []hca.Counter
	// Close closes the transport; blocked calls return hca.ErrClosed. It is
	// idempotent.
	Close() error
}
