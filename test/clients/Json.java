import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much of JSON as the scenarios need: maps, lists, texts, integers, true, false and null. */
final class Json {
    private final Map<?, ?> members;

    Json(Object object) {
        members = (Map<?, ?>) object;
    }

    boolean has(String key) {
        return members.get(key) != null;
    }

    Object get(String key) {
        return members.get(key);
    }

    String text(String key) {
        return (String) members.get(key);
    }

    int number(String key) {
        return ((Number) members.get(key)).intValue();
    }

    List<String> texts(String key) {
        return ((List<?>) members.get(key)).stream().map(String.class::cast).toList();
    }

    /** An empty one if there is none. */
    Json object(String key) {
        return new Json(has(key) ? members.get(key) : Map.of());
    }

    static Object read(String text) {
        return new Reader(text).value();
    }

    static String write(Object value) {
        if (value instanceof Map<?, ?> map) {
            return "{" + String.join(", ", map.entrySet().stream().map(one -> write(one.getKey()) + ": " + write(one.getValue())).toList()) + "}";
        } else if (value instanceof List<?> list) {
            return "[" + String.join(", ", list.stream().map(Json::write).toList()) + "]";
        } else if (value instanceof String string) {
            return "\"" + string.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
        }
        return String.valueOf(value);
    }

    private static final class Reader {
        private final String text;
        private int at;

        Reader(String text) {
            this.text = text;
        }

        private char next() {
            while (Character.isWhitespace(text.charAt(at))) {
                at++;
            }
            return text.charAt(at);
        }

        /** Is this next? Then go beyond it. */
        private boolean passes(char expected) {
            boolean is = next() == expected;
            at += is ? 1 : 0;
            return is;
        }

        Object value() {
            if (passes('{')) {
                Map<String, Object> map = new LinkedHashMap<>();
                while (!passes('}')) {
                    passes(',');
                    next();
                    String key = string();
                    passes(':');
                    map.put(key, value());
                }
                return map;
            } else if (passes('[')) {
                List<Object> list = new ArrayList<>();
                while (!passes(']')) {
                    passes(',');
                    list.add(value());
                }
                return list;
            } else if (next() == '"') {
                return string();
            }
            int from = at;
            while (at < text.length() && ",]} \n".indexOf(text.charAt(at)) < 0) {
                at++;
            }
            String word = text.substring(from, at);
            return switch (word) {
                case "null" -> null;
                case "true", "false" -> Boolean.valueOf(word);
                default -> Long.valueOf(word);
            };
        }

        private String string() {
            StringBuilder string = new StringBuilder();
            for (at++; text.charAt(at) != '"'; at++) {
                char c = text.charAt(at);
                if (c == '\\') {
                    at++;
                    c = text.charAt(at);
                    if (c == 'u') {
                        c = (char) Integer.parseInt(text.substring(at + 1, at + 5), 16);
                        at += 4;
                    } else if ("nrtbf".indexOf(c) >= 0) {
                        c = "\n\r\t\b\f".charAt("nrtbf".indexOf(c));
                    }
                }
                string.append(c);
            }
            at++;
            return string.toString();
        }
    }
}
