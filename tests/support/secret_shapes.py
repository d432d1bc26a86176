"""Forty shapes of secrets in practice. Each contains ``CORE``, which no text for other readers may show."""

import base64
import json

CORE = "hush4X9"


def basic_login(core: str) -> str:
    """Returns the login of a basic header with a password."""
    return base64.b64encode(f"ada:{core}".encode()).decode()


def shapes(core: str) -> dict[str, str]:
    """Returns the shapes with their names. Each contains ``core``, or its basic login."""
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada" password="{core}";'
    key = f"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqh\n{core}kiG9w0BAQEF\n-----END PRIVATE KEY-----"
    basic = basic_login(core)
    return {
        "a word": core,
        "a sentence": f"horse battery {core} staple",
        "quotes": f"\"{core}'",
        "a backslash": f"\\{core}\\",
        "an umlaut": f"ü{core}",
        "an emoji": f"{core}🙂",
        "a line break": f"{core}\n",
        "signs of a URL": f"{core}/?&=+%",
        "signs of a regular expression": f"(.*{core})+",
        "signs of XML": f"<{core}&>",
        "a JAAS text": login,
        "a JAAS text with apostrophes": f"ScramLoginModule required username='ada' password='{core}';",
        "a JAAS file": f'KafkaClient {{\n  com.example.Login required\n  serviceName="kafka"\n  password="{core}";\n}};',
        "a URL": f"https://ada:{core}@packages.example/maven",
        "a URL of a database": f"postgresql+psycopg://ada:{core}@db:5432/flights",
        "a JDBC URL": f"jdbc:mysql://db/hive?user=ada&password={core}",
        "a JDBC URL with semicolons": f"jdbc:sqlserver://db;user=ada;Password={core}",
        "a signed URL": f"https://a.blob.core.windows.net/c?sv=2024-01-01&sig={core}",
        "a signature": f"sv=2024-01-01&sig={core}",
        "a web hook": f"https://hooks.example/services?token={core}",
        "a connection string of a store": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={core}+/==",
        "a connection string of a bus": f"Endpoint=sb://bus;SharedAccessKeyName=n;SharedAccessKey={core}",
        "a connection string of ODBC": f"Driver=SQL;Server=db;UID=ada;PWD={core}",
        "a connection string of libpq": f"host=db user=ada password={core}",
        "a line of .pgpass": f"db:5432:flights:ada:{core}",
        "a user and a password": f"ada:{core}",
        "a bearer token": f"Bearer {core}",
        "a header": f"Authorization: Bearer {core}",
        "a basic header": f"Authorization: Basic {basic}",
        "a cookie": f"session={core}; Path=/",
        "a JSON object": json.dumps({"user": "ada", "password": core}),
        "a JSON object in another": json.dumps({"login": {"user": "ada", "password": core}}),
        "a JSON list": json.dumps([core, "more"]),
        "a key of a service account": json.dumps({"type": "service_account", "private_key": key}),
        "a JSON object with a URL": json.dumps(
            {"url": f"https://ada:{core}@db/flights", "dsn": f"https://ada:{core}@db/flights"}
        ),
        "a private key": key,
        "YAML": f"user: ada\npassword: {core}",
        "properties": f"user=ada\nmy.password={core}",
        "a Docker login": json.dumps({"auths": {"registry.example": {"auth": basic}}}),
        "a JSON web token": f"eyJhbGciOiJIUzI1NiJ9.{core}.c2ln",
    }


SHAPES = shapes(CORE)
WHOLE = frozenset(
    {
        *("a sentence", "quotes", "a backslash", "an umlaut", "an emoji", "a line break"),
        *("signs of a URL", "signs of a regular expression", "signs of XML"),
        *("a private key", "a connection string of a store", "a key of a service account", "a JSON web token"),
    }
)
"""The shapes in which ``CORE`` is not a password of its own."""
