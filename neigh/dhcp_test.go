package neigh

import (
	"encoding/binary"
	"fmt"
	"testing"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

var guestMAC = ipoib.MAC{2, 0xaa}

// dhcp returns an IPv4 packet with a DHCP message of a client or a server.
func dhcp(op, kind byte, yours string, to string) []byte {
	p := make([]byte, 20+8+240)
	p[0], p[8], p[9] = 0x45, 64, 17
	copy(p[16:], ip(to).AsSlice())
	m := p[28:]
	m[0], m[1], m[2] = op, 1, 6
	copy(m[16:], ip(yours).AsSlice())
	copy(m[28:], guestMAC[:])
	binary.BigEndian.PutUint32(m[236:], 0x63825363)
	port := uint16(67)
	if op == 2 {
		port = 68
	}
	binary.BigEndian.PutUint16(p[22:], port)
	p = append(p, 53, 1, kind, 255)
	p = append(p, make([]byte, 60)...) // padding
	binary.BigEndian.PutUint16(p[24:], uint16(len(p)-20))
	return p
}

func fabricDHCP(from endpoint, packet []byte, multicast bool) FromFabric {
	return FromFabric{append(newMessage(ipoib.EtherTypeIPv4), packet...), from.key(), multicast}
}

// A guest gets an address: its request asks for a broadcast, the answer goes to it although it has no address yet, and
// then what is sent to that address does.
func TestDHCPOfAGuest(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	out := b.step(FromHost{append(newFrame(ipoib.Broadcast, guestMAC, ipoib.EtherTypeIPv4), dhcp(1, 3, "0.0.0.0", "255.255.255.255")...)})
	if m := out[0].(SendFabric).Msg[ipoib.HeaderLen+28:]; m[10] != 0x80 || m[1] != 1 || m[2] != 6 || ipoib.MAC(m[28:]) != guestMAC {
		t.Errorf("the request does not ask for a broadcast, or names another client: % x", m)
	}
	for _, c := range []struct {
		what      string
		to        string
		multicast bool
		want      ipoib.MAC
	}{
		{"broadcast", "255.255.255.255", true, ipoib.Broadcast},
		{"replicated", "255.255.255.255", false, ipoib.Broadcast},
		{"unicast", "10.0.0.77", false, guestMAC},
		{"unicast, to a group", "10.0.0.77", true, ipoib.Broadcast},
	} {
		out := b.step(fabricDHCP(peerB, dhcp(2, 5, "10.0.0.77", c.to), c.multicast))
		if got := ipoib.MAC(out[0].(SendHost).Frame); got != c.want {
			t.Errorf("%s: to %v, want %v", c.what, got, c.want)
		}
	}
	b.advance(latePause)
	if m, ok := b.snap.StationMAC(ip("10.0.0.77")); !ok || m != guestMAC {
		t.Errorf("the address is at %v, %t", m, ok)
	}
}

// With the form of RFC 4390, an answer names no client: it is found by its transaction.
func TestDHCPByRFC4390(t *testing.T) {
	b := attachedBench(t, Config{DHCP: DHCPRFC4390})
	b.meet(peerB, ipB)
	out := b.step(FromHost{append(newFrame(ipoib.Broadcast, guestMAC, ipoib.EtherTypeIPv4), dhcp(1, 3, "0.0.0.0", "255.255.255.255")...)})
	if m := out[0].(SendFabric).Msg[ipoib.HeaderLen+28:]; m[1] != 32 || m[2] != 0 || m[28] != 0 || m[10] != 0x80 {
		t.Errorf("the request is % x", m)
	}
	ack := dhcp(2, 5, "10.0.0.77", "255.255.255.255")
	ack[28+1], ack[28+2] = 32, 0
	clear(ack[28+28 : 28+44])
	out = b.step(fabricDHCP(peerB, ack, true))
	if m := out[0].(SendHost).Frame[14+28:]; m[1] != 1 || m[2] != 6 || ipoib.MAC(m[28:]) != guestMAC {
		t.Errorf("the answer is % x", m)
	}
	if got := b.table.host.stations.dest(ip("10.0.0.77")); got != guestMAC {
		t.Errorf("the address is at %v", got)
	}
	// The answer to another host's client stays as it is. Invented transactions are bounded.
	ack[28+4] = 1
	if m := b.step(fabricDHCP(peerB, ack, true))[0].(SendHost).Frame[14+28:]; m[1] != 32 {
		t.Errorf("the answer is % x", m)
	}
	for i := range 2 * maxDHCPClients {
		request := dhcp(1, 3, "0.0.0.0", "255.255.255.255")
		binary.BigEndian.PutUint32(request[28+4:], uint32(i))
		b.step(FromHost{append(newFrame(ipoib.Broadcast, guestMAC, ipoib.EtherTypeIPv4), request...)})
		if n := len(b.table.translator.clients); n > maxDHCPClients {
			t.Fatalf("%d transactions", n)
		}
	}
}

// By default, requests have the form of RFC 4390 on InfiniBand only. The configured form is the same on every link.
func TestDHCPFormByLink(t *testing.T) {
	for _, c := range []struct {
		form  DHCPForm
		lid   hca.LID
		htype byte
	}{
		{DHCPByLink, 0, 1},
		{DHCPByLink, 8, 32},
		{DHCPEthernet, 8, 1},
		{DHCPRFC4390, 0, 32},
	} {
		b := attachedBench(t, Config{DHCP: c.form})
		at := attachedAt(selfEnd)
		at.LID = c.lid
		b.step(at)
		out := b.step(FromHost{append(newFrame(ipoib.Broadcast, guestMAC, ipoib.EtherTypeIPv4), dhcp(1, 3, "0.0.0.0", "255.255.255.255")...)})
		if m := out[0].(SendFabric).Msg[ipoib.HeaderLen+28:]; m[1] != c.htype || m[10] != 0x80 {
			t.Errorf("form %d, LID %d: hardware type %d, flags %#x; want %d and the broadcast flag", c.form, c.lid, m[1], m[10], c.htype)
		}
	}
}

// dhcpRequest is the request of a client behind ib0, in a transaction.
func dhcpRequest(client ipoib.MAC, xid uint32) FromHost {
	request := dhcp(1, 3, "0.0.0.0", "255.255.255.255")
	binary.BigEndian.PutUint32(request[28+4:], xid)
	copy(request[28+28:], client[:])
	return FromHost{append(newFrame(ipoib.Broadcast, client, ipoib.EtherTypeIPv4), request...)}
}

// Of several clients that ask at the same time, each gets its answer.
func TestDHCPOfSeveralGuests(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	clients := []ipoib.MAC{guestMAC, firstMAC, secondMAC}
	for i, client := range clients {
		b.step(dhcpRequest(client, uint32(i)))
	}
	for i, client := range clients {
		answer := dhcp(2, 5, fmt.Sprintf("10.0.0.7%d", i), fmt.Sprintf("10.0.0.7%d", i))
		answer[28+7] = byte(i)
		copy(answer[28+28:], client[:])
		if got := ipoib.MAC(only[SendHost](t, b.step(fabricDHCP(peerB, answer, false))).Frame); got != client {
			t.Errorf("the answer for %v goes to %v", client, got)
		}
	}
}

// Only the requests of stations begin transactions: not the answers of a server behind ib0, nor what is no DHCP message.
func TestDHCPTransactions(t *testing.T) {
	b := attachedBench(t, Config{})
	short := dhcp(1, 3, "0.0.0.0", "255.255.255.255")[:20+8+100]
	binary.BigEndian.PutUint16(short[24:], 8+100)
	for _, packet := range [][]byte{dhcp(2, 5, "10.0.0.77", "255.255.255.255"), short} {
		b.step(FromHost{append(newFrame(ipoib.Broadcast, firstMAC, ipoib.EtherTypeIPv4), packet...)})
		if n := len(b.table.translator.clients); n != 0 {
			t.Errorf("%d transactions", n)
		}
	}
	b.step(dhcpRequest(guestMAC, 0))
	if b.table.translator.clients[0] != guestMAC {
		t.Error("no transaction of the guest")
	}
}

// What is not the answer for a client that is here goes to its IP address, as any packet.
func TestDHCPOfOthers(t *testing.T) {
	for _, c := range []struct {
		what    string
		prepare func(*bench)
		edit    func(packet []byte)
	}{
		{"for another client in the same transaction", func(*bench) {}, func(packet []byte) { copy(packet[28+28:], secondMAC[:]) }},
		{"a request in the same transaction", func(*bench) {}, func(packet []byte) { packet[28] = 1 }},
		{"for a client that is forgotten", func(b *bench) {
			b.step(HostPort{Up: true, Bridge: 6, Master: bridgeMAC})
			b.step(claimOf(firstMAC, "10.0.0.8"))
		}, func([]byte) {}},
	} {
		b := attachedBench(t, Config{})
		b.step(HostPort{Up: true, Bridge: 5, Master: bridgeMAC})
		b.meet(peerB, ipB)
		b.step(dhcpRequest(guestMAC, 0))
		b.step(claimOf(firstMAC, "10.0.0.8"))
		c.prepare(b)
		packet := dhcp(2, 5, "10.0.0.77", "10.0.0.8")
		c.edit(packet)
		if got := ipoib.MAC(only[SendHost](t, b.step(fabricDHCP(peerB, packet, false))).Frame); got != firstMAC {
			t.Errorf("%s: goes to %v, want %v", c.what, got, firstMAC)
		}
		if b.table.host.stations.has(ip("10.0.0.77")) {
			t.Errorf("%s: teaches an address", c.what)
		}
	}
}

// An offer is no ACK: the client does not have the address yet.
func TestDHCPOffer(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.step(dhcpRequest(guestMAC, 0))
	out := b.step(fabricDHCP(peerB, dhcp(2, 2, "10.0.0.77", "10.0.0.77"), false))
	if got := ipoib.MAC(only[SendHost](t, out).Frame); got != guestMAC || b.table.host.stations.has(ip("10.0.0.77")) {
		t.Errorf("the offer goes to %v; the address is known: %t", got, b.table.host.stations.has(ip("10.0.0.77")))
	}
}

// An answer for a client that is not here is delivered as any packet; one for an address of another station, or of a
// peer, moves nothing.
func TestForgedDHCP(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	ack := func(yours string) { b.step(fabricDHCP(peerC, dhcp(2, 5, yours, "255.255.255.255"), true)) }
	ack("10.0.0.77")
	if b.table.host.stations.has(ip("10.0.0.77")) {
		t.Error("an address was learnt for an unknown client")
	}
	b.step(hostARP(firstMAC, ipoib.Broadcast, ipoib.ARPRequest, "10.0.0.8", ipB))
	b.step(hostARP(guestMAC, ipoib.Broadcast, ipoib.ARPRequest, "10.0.0.9", ipB))
	b.step(dhcpRequest(guestMAC, 0))
	for _, yours := range []string{"10.0.0.8", ipA, ipB, "224.0.0.1", "0.0.0.0"} {
		ack(yours)
	}
	h := &b.table.host.stations
	if h.dest(ip("10.0.0.8")) != firstMAC || h.dest(ip(ipA)) != ownMAC || b.table.peers.live.byIP[ip(ipB)] == nil || len(h.byMAC[guestMAC].ips) != 1 {
		t.Errorf("a forged answer has moved an address: %v", h.byMAC[guestMAC].ips)
	}
}
