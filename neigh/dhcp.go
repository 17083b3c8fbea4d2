package neigh

import (
	"bytes"

	"ipoibd/ud/ipoib"
)

// DHCPForm is the form that the requests of DHCP clients get on the fabric.
type DHCPForm uint8

// The forms.
const (
	DHCPByLink   DHCPForm = iota // that of RFC 4390 on InfiniBand, whose servers may know no other, else Ethernet's
	DHCPEthernet                 // hardware type 1 and the MAC of the client
	DHCPRFC4390                  // hardware type 32, no hardware address, and an identifier of the client
)

// dhcpClients are the stations that have asked a DHCP server, by their transactions. Answers in the form of RFC 4390
// do not name a client, and an answer that no one waits for is forged.
type dhcpClients map[uint32]ipoib.MAC

// note bounds the transactions: clients ask again.
func (c dhcpClients) note(xid uint32, client ipoib.MAC) {
	if len(c) >= maxDHCPClients {
		clear(c)
	}
	c[xid] = client
}

// hostDHCP returns the message for a DHCP packet from the host. The answer to it is for all stations: a server would
// send it to the client's MAC otherwise.
func (x *translator) hostDHCP(f frame) []byte {
	msg := append(newMessage(f.typ), f.body()...)
	packet := msg[ipoib.HeaderLen:]
	d, err := ipoib.ParseDHCP(packet)
	if err == nil && !d.Reply {
		x.clients.note(d.XID, d.Client)
	}
	rfc4390 := x.dhcp == DHCPRFC4390 || x.dhcp == DHCPByLink && x.host.link.lid != 0
	if !rfc4390 || !ipoib.DHCPToIPoIB(packet) {
		ipoib.WantBroadcast(packet)
	}
	return msg
}

// fabricDHCP delivers a DHCP packet from the fabric. An ACK names the station that has the address, unless that address
// already has a holder.
func (t *Table) fabricDHCP(e endpoint, packet []byte, multicast bool) {
	d, err := ipoib.ParseDHCP(packet)
	client, asked := t.translator.clients[d.XID]
	if err != nil || !asked || !d.Reply || d.Relay {
		t.toStation(e, ipoib.EtherTypeIPv4, packet, multicast)
		return
	}
	if answer := bytes.Clone(packet); ipoib.DHCPToEther(answer, client) {
		packet, d.Client = answer, client
	}
	if d.Client != client || !t.host.stations.is(client) {
		t.toStation(e, ipoib.EtherTypeIPv4, packet, multicast)
		return
	}
	if d.ACK && !t.host.stations.has(d.Yours) && t.peers.live.byIP[d.Yours] == nil {
		t.translator.hostClaims(client, d.Yours)
	}
	ip, _ := ipoib.DestIP(ipoib.EtherTypeIPv4, packet)
	dst := client // it has no address yet
	if multicast || !isUnicast(ip) {
		dst = ipoib.Broadcast
	}
	t.host.deliver(append(newFrame(dst, t.peers.at(e).mac, ipoib.EtherTypeIPv4), packet...))
}
