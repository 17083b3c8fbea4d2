package ipoib

// ND option types (RFC 4861 section 4.6).
const (
	OptionNone           uint8 = 0 // no option of this type exists
	OptionSourceLink     uint8 = 1
	OptionTargetLink     uint8 = 2
	optionRedirectedHead uint8 = 4
)

// optionUnit is the unit of an option's length field in bytes.
const optionUnit = 8

// Form is the form of the link-layer addresses inside a body.
type Form uint8

// Forms of a body.
const (
	FormEther Form = iota // 6-byte addresses: RFC 2464 section 6
	FormIPoIB             // 20-byte addresses: RFC 4391 section 9.3
)

// optionLen returns the length of a link-layer address option in bytes.
func (f Form) optionLen() int {
	if f == FormIPoIB {
		return 24
	}
	return 8
}

// addrOffset returns the offset of the address in the option: behind type and
// length and, in the IPoIB form, two reserved bytes.
func (f Form) addrOffset() int {
	if f == FormIPoIB {
		return 4
	}
	return 2
}

// LinkOption is a link-layer address option.
type LinkOption struct {
	Type uint8  // OptionSourceLink, OptionTargetLink or OptionNone
	Addr []byte // 6 or 20 bytes, aliasing the packet; nil for OptionNone
}

// MAC returns the address of an option in the Ethernet form.
func (o LinkOption) MAC() (MAC, bool) {
	if len(o.Addr) != len(MAC{}) {
		return MAC{}, false
	}
	return MAC(o.Addr), true
}

// IPoIB returns the address of an option in the IPoIB form.
func (o LinkOption) IPoIB() (Addr, bool) {
	if len(o.Addr) != AddrLen {
		return Addr{}, false
	}
	return Addr(o.Addr), true
}

// linkOptionOf returns the link-layer address option that a message type
// defines (RFC 4861 section 4); receivers ignore the other one.
func linkOptionOf(msgType uint8) uint8 {
	switch msgType {
	case NDRouterSolicit, NDRouterAdvert, NDNeighborSolicit:
		return OptionSourceLink
	}
	return OptionTargetLink
}

func isLinkOption(option []byte) bool {
	return option[0] == OptionSourceLink || option[0] == OptionTargetLink
}

// cutOption splits off the first option, which has at least 8 bytes. options
// must not be empty.
func cutOption(options []byte) (option, rest []byte, err error) {
	if len(options) < 2 {
		return nil, nil, ErrOption
	}
	n := int(options[1]) * optionUnit
	if n == 0 || n > len(options) {
		return nil, nil, ErrOption
	}
	return options[:n], options[n:], nil
}

// scanOptions checks every option and fills in Link and links.
func (nd *ND) scanOptions(options []byte, form Form) error {
	for len(options) > 0 {
		option, rest, err := cutOption(options)
		if err != nil {
			return err
		}
		if isLinkOption(option) {
			if err := nd.addLink(option, form); err != nil {
				return err
			}
		}
		options = rest
	}
	return nil
}

// addLink notes a link-layer address option. It refuses a second one of the
// type that the message defines, because receivers differ in which of them they
// use, and they must use the one that was checked.
func (nd *ND) addLink(option []byte, form Form) error {
	if len(option) != form.optionLen() {
		return ErrOption
	}
	nd.links++
	if option[0] != linkOptionOf(nd.Type) {
		return nil
	}
	if nd.Link.Type != OptionNone {
		return ErrOption
	}
	nd.Link = LinkOption{Type: option[0], Addr: option[form.addrOffset():]}
	return nil
}
