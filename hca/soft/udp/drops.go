package udp

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// drop is the reason for which a packet to send was dropped.
type drop uint8

const (
	dropNoRoute drop = iota
	dropTooLong
	dropBadSource
	dropLinkDown
	dropNoDevice
	dropForbidden
	dropNoBuffers
	dropRefused
	dropInvalid
	dropOther
	numDrop
)

// dropNames are the names of the counters.
var dropNames = [numDrop]string{
	dropNoRoute:   "tx_drop_no_route",   // no route to the destination
	dropTooLong:   "tx_drop_too_long",   // longer than the netdev's MTU, or than UDP
	dropBadSource: "tx_drop_bad_source", // the source address is not the netdev's (or no longer)
	dropLinkDown:  "tx_drop_link_down",  // the netdev is down
	dropNoDevice:  "tx_drop_no_device",  // the netdev is gone
	dropForbidden: "tx_drop_forbidden",  // by a firewall
	dropNoBuffers: "tx_drop_no_buffers", // lost on output: a queue or the neighbour table is full, or memory is short
	dropRefused:   "tx_drop_refused",    // ICMP errors about other packets prevented the send
	dropInvalid:   "tx_drop_invalid",    // families differ, or the data does not fit the datagrams of a train
	dropOther:     "tx_drop_rejected",   // any other error of the kernel
}

// dropFor names the reason behind an error of sendmmsg.
func dropFor(errno unix.Errno) drop {
	switch errno {
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT:
		return dropNoRoute
	case unix.EMSGSIZE:
		return dropTooLong
	case unix.ENETDOWN:
		return dropLinkDown
	case unix.ENODEV, unix.ENXIO:
		return dropNoDevice
	case unix.EPERM, unix.EACCES:
		return dropForbidden
	case unix.ENOBUFS, unix.ENOMEM:
		return dropNoBuffers
	case unix.ECONNREFUSED:
		return dropRefused
	}
	return dropOther
}

// txCounts are written by the goroutine that sends.
type txCounts struct {
	packets, bytes atomic.Uint64
	trains         atomic.Uint64 // sends of several packets
	drops          [numDrop]atomic.Uint64
	full           atomic.Uint64 // calls that found the send buffer full
	icmpErrors     atomic.Uint64 // removed from the socket's error queue
}

func (c *txCounts) list() []hca.Counter {
	out := []hca.Counter{
		{Name: "tx_packets", Kind: hca.CountTotal, Value: c.packets.Load()},
		{Name: "tx_bytes", Kind: hca.CountTotal, Value: c.bytes.Load()},
		{Name: "tx_trains", Kind: hca.CountTotal, Value: c.trains.Load()},
	}
	for d := range c.drops {
		out = append(out, hca.Counter{Name: dropNames[d], Kind: hca.CountDrop, Value: c.drops[d].Load()})
	}
	return append(out, hca.Counter{Name: "icmp_errors", Kind: hca.CountError, Value: c.icmpErrors.Load()})
}
