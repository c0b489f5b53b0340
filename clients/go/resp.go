// SPDX-License-Identifier: MIT

package lock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// RESP2, in which a message comes as a reply does.

// maxBulk is the server's own limit for a string, in bytes.
const maxBulk = 512 << 20

var errProtocol = errors.New("what came is not RESP2")

func appendCommand(out []byte, words []any) []byte {
	out = strconv.AppendInt(append(out, '*'), int64(len(words)), 10)
	out = append(out, "\r\n"...)
	for _, word := range words {
		var text string
		switch word := word.(type) {
		case string:
			text = word
		case []byte:
			text = string(word)
		case bool:
			text = "0"
			if word {
				text = "1"
			}
		default:
			text = fmt.Sprint(word)
		}
		out = strconv.AppendInt(append(out, '$'), int64(len(text)), 10)
		out = append(append(append(out, "\r\n"...), text...), "\r\n"...)
	}
	return out
}

// readReply gives nil, int64, string, serverError, or []any of these. The error is one of the connection.
func readReply(in *bufio.Reader) (any, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, errProtocol
	}
	kind, rest := line[0], line[1:len(line)-2]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return serverError(rest), nil
	}
	number, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		return nil, errProtocol
	}
	switch {
	case kind == ':':
		return number, nil
	case kind != '$' && kind != '*', number < -1, number > maxBulk:
		return nil, errProtocol
	case number == -1:
		return nil, nil
	case kind == '$':
		text := make([]byte, number+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		return string(text[:number]), nil
	}
	var items []any
	for ; number > 0; number-- {
		item, err := readReply(in)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}
