// Package transport is the contract between the software HCA and what carries its
// datagrams: UDP sockets on a netdev ([ipoibd/hca/soft/udp]) or an in-memory
// fabric ([ipoibd/hca/soft/memfabric]).
package transport

import (
	"context"
	"net/netip"

	"ipoibd/hca"
)

// MaxVec bounds the gather list of a packet: headers, four pieces of payload,
// padding and ICRC.
const MaxVec = 6

// Packet is one RoCEv2 datagram, from the BTH to the ICRC: what UDP carries.
type Packet struct {
	// Src and Dst are the IP addresses, IPv4 ones in their 4-byte form. Src is
	// one of State.Addrs on send; Dst may be a multicast address.
	Src, Dst netip.Addr
	// SrcPort is the UDP source port: of the sender on receive; on send the
	// transport's own, see Transport.SrcPort.
	SrcPort uint16
	// TOS and TTL are the IPv4 fields, or traffic class and hop limit. On
	// send they are what the AH asks for (TTL 0: the system's default); on
	// receive what was seen, 0 where the transport cannot see it.
	TOS, TTL uint8
	// ID is the IPv4 identification where IDKnown says that it was seen.
	ID      uint16
	IDKnown bool
	// Vec is the gather list of a send, caller's memory until the packet is
	// sent. At most MaxVec entries.
	Vec [][]byte
	// Data is a received datagram, the transport's memory until the next Recv.
	Data []byte
}

// State is what the transport's underlay looks like now.
type State struct {
	Name    string // of the netdev; it may change
	Index   int    // kernel index
	Present bool   // false for good once the netdev is gone
	Up      bool   // administratively up and with carrier
	MTU     int    // of the underlay, bytes of IP packet
	MAC     [6]byte
	Addrs   []netip.Addr // usable unicast addresses, in a stable order: link-local IPv6, IPv4, other IPv6
}

// Transport carries datagrams. Send is called by one goroutine at a time, so
// is Recv; every other method may be called from any goroutine.
type Transport interface {
	// SrcPort is the UDP source port of everything sent; it is covered by the
	// ICRC and does not change while the transport is open.
	SrcPort() uint16
	// Send sends packets in order without blocking and returns how many are
	// done with: sent, or dropped and counted by reason in Counters (no
	// route, too long, no buffers, ...). n < len(pkts) with a nil error means
	// that the transport is full: call WaitWritable, then send the rest, or
	// give it up. IPv4 packets leave with DF set and identification 0 (the
	// ICRC covers both). An error is hca.ErrClosed or hca.ErrIO.
	Send(pkts []Packet) (n int, err error)
	// WaitWritable blocks until Send can take something, or ctx ends. It may
	// return late, after Send could already take packets.
	WaitWritable(ctx context.Context) error
	// Blocked counts how often Send found the wire full: it took fewer packets
	// than it was given, or dropped one because there was no room below.
	Blocked() uint64
	// Recv blocks until there is at least one datagram and returns up to
	// len(pkts). hca.ErrClosed after Close.
	Recv(pkts []Packet) (int, error)
	// Join and Leave an IP multicast group; they count: each Join needs its
	// Leave. Own multicast packets do not come back.
	Join(group netip.Addr) error
	Leave(group netip.Addr) error
	// State returns the present state; the slices in it belong to the caller.
	State() State
	// WaitChange blocks until the state may differ from the one returned
	// last, by State or by WaitChange; ctx's error, or hca.ErrClosed.
	WaitChange(ctx context.Context) (State, error)
	// Counters returns counts of packets and of drops by reason.
	Counters() []hca.Counter
	// Close ends it; blocked calls return hca.ErrClosed. Harmless when
	// repeated.
	Close() error
}
