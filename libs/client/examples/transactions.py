# SPDX-License-Identifier: Apache-2.0
"""Send a message if, and only if, a row is in the database.

Start it with NAMESRV_ADDR=127.0.0.1:9876 python transactions.py
"""

import asyncio
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from cometmq.client import Message, MessageExt, TransactionProducer, TransactionState


class Orders:
    """The orders, each with its transaction."""

    def __init__(self, path: Path) -> None:
        """Create the table."""
        self._path = path
        with closing(self._connect()) as database, database:
            database.execute("create table orders (price real check (price > 0), came_by text)")

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)

    def add(self, message: Message, price: Any) -> TransactionState:
        """Run the local transaction; if it fails, the message is rolled back too."""
        try:
            with closing(self._connect()) as database, database:
                database.execute("insert into orders values (?, ?)", (price, message.message_id))
        except sqlite3.IntegrityError:
            return TransactionState.ROLLBACK
        return TransactionState.COMMIT

    def check(self, message: MessageExt) -> TransactionState:
        """Answer a broker's check by looking for the row."""
        with closing(self._connect()) as database:
            query = "select count(*) from orders where came_by = ?"
            (count,) = database.execute(query, (message.message_id,)).fetchone()
        return TransactionState.COMMIT if count else TransactionState.ROLLBACK


async def main() -> None:
    """Add one valid order and one that is not."""
    with tempfile.TemporaryDirectory() as folder:
        orders = Orders(Path(folder) / "orders.db")
        producer = TransactionProducer("orders", check=orders.check, execute=orders.add)
        async with producer:
            for price in (12.90, -1):
                message = Message("NewOrders", f"an order for {price}".encode())
                result = await producer.send_in_transaction(message, price)
                print(price, result.state.name)


asyncio.run(main())
