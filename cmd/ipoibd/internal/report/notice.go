package report

import "strings"

// Kinds of notice. The last three are those of an interface, the others those of a device.
const (
	NoticeDuplicateAddress = "duplicate_address" // another host has the underlay's address
	NoticeNAT              = "nat"               // a NAT seems to translate received packets
	NoticeFirewall         = "firewall"          // this host's firewall refuses datagrams
	NoticeUnresolved       = "unresolved_peer"   // the name of a peer cannot be looked up
	NoticeSilent           = "silent"            // no packet from any peer yet
	NoticeSendBuffer       = "send_buffer"       // it is small
	NoticeOneSocket        = "one_socket"        // all lanes have one socket
	NoticeNoSegmentation   = "no_segmentation"   // of UDP, by the kernel
	NoticePathMTU          = "path_mtu"          // the path to a peer carries less than the MTU
	NoticeNoIPv6           = "no_ipv6"           // the MTU is too small
	NoticeEventsLost       = "events_lost"       // the device's completion events do not arrive
)

// Notice is a condition that an operator should know. Its kind is constant, unlike its text.
type Notice struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// Notices are the conditions of a device or an interface.
type Notices []Notice

// Text joins the texts.
func (n Notices) Text() string {
	texts := make([]string, 0, len(n))
	for _, one := range n {
		texts = append(texts, one.Text)
	}
	return strings.Join(texts, "; ")
}

// Add adds a notice unless its text is empty.
func (n *Notices) Add(kind, text string) {
	if text != "" {
		*n = append(*n, Notice{kind, text})
	}
}
